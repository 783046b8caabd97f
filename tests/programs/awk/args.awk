BEGIN {
    for (i = 1; i < ARGC; i++) {
        print ARGV[i]
    }
    while ((getline line < "/dev/stdin") > 0) {
        print line
    }
    exit 3
}
