puts "hello from ruby"
