cat("hello from r\n")
