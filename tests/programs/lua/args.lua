for _, argument in ipairs(arg) do
  print(argument)
end
io.write(io.read("a"))
os.exit(3, true)
