(display "hello from scheme")
(newline)
