program hello
  implicit none
  print '(a)', 'hello from fortran'
end program hello
