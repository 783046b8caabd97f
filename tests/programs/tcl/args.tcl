foreach argument $argv {
    puts $argument
}
chan copy stdin stdout
exit 3
