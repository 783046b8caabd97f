program args
  use, intrinsic :: iso_fortran_env, only: input_unit, output_unit
  implicit none
  character(len=4096) :: text
  integer :: i, length, status

  do i = 1, command_argument_count()
    call get_command_argument(i, text, length)
    write (output_unit, '(a)') text(:length)
  end do
  do
    read (input_unit, '(a)', iostat=status) text
    if (status /= 0) exit
    write (output_unit, '(a)') trim(text)
  end do
  stop 3, quiet=.true.
end program args
