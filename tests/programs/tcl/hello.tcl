puts "hello from tcl"
