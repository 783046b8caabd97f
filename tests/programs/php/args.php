<?php
foreach (array_slice($argv, 1) as $argument) {
    echo $argument, "\n";
}
stream_copy_to_stream(STDIN, STDOUT);
exit(3);
