SELECT 'hello from ' || lower('SQL');
