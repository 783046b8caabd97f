import std/os

for argument in commandLineParams():
  echo argument
stdout.write(stdin.readAll())
quit(3)
