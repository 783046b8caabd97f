(format t "hello from lisp~%")
