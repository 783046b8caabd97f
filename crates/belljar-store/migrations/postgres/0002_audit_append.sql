-- With PostgreSQL several keepers write, and each locks the head anyway: nothing is added here.
SELECT 1;
