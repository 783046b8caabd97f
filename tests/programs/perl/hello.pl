use strict;
use warnings;

print "hello from perl\n";
