#!/bin/bash
arguments=("$@")
for argument in "${arguments[@]}"; do
  printf '%s\n' "$argument"
done
cat
exit 3
