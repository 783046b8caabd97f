#!/bin/bash
words=(hello from bash)
echo "${words[*]}"
