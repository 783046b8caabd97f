package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	for _, argument := range os.Args[1:] {
		fmt.Println(argument)
	}
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(3)
}
