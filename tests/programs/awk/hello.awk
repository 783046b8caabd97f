BEGIN { print "hello from awk" }
