! Calls of the module shardkit with arrays of every kind; embedded.c says what reaches C.

program embedded
  use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, output_unit, real32, real64
  use shardkit
  implicit none
  real(real32), target :: of_real32(2, 3) = reshape([1, 2, 3, 4, 5, 6], [2, 3])
  real(real64), target :: of_real64(2) = [1, 2], rates(2)
  complex(real32), target :: of_complex64(2) = (1, 2)
  complex(real64), target :: of_complex128(2) = (1, 2)
  integer(int8), target :: of_int8(2) = 1
  integer(int16), target :: of_int16(2) = 1
  integer(int32), target :: of_int32 = 7
  integer(int64), target :: of_int64(2) = 1
  logical, target :: of_logical = .false.
  real(real32) :: output(2, 1)
  character(40) :: why
  integer :: code(20), count

  code(1) = sk_start(0, 2, "in_flight=8  ")
  code(2) = sk_start(0, 1)
  code(3) = sk_field("real32 ", of_real32)
  code(4) = sk_field("real64", of_real64)
  code(5) = sk_field("complex64", of_complex64)
  code(6) = sk_field("complex128", of_complex128)
  code(7) = sk_field("int8", of_int8)
  code(8) = sk_field("int16", of_int16)
  code(9) = sk_field("int32", of_int32)
  code(10) = sk_field("int64", of_int64)
  code(11) = sk_field("section", of_real32(2:2, 1:3:2))
  code(12) = sk_field("backward", of_real64(2:1:-1))
  code(13) = sk_field("logical", of_logical)
  code(14) = sk_put()
  code(15) = sk_put(0.5_real64, weight=2.0_real64)
  code(16) = sk_predict(reshape(of_real32(:, 1:2), [4, 1]), output)
  code(17) = sk_steered("rate", rates, 2, count)
  code(18) = sk_is_training(count)
  code(19) = sk_finish()
  code(20) = sk_close()
  call sk_last_error(why)
  if (any(code(:19) /= 0) .or. code(20) == 0 .or. count /= 1) error stop 1
  call flush (output_unit)
  call say(" -> "//achar(48 + int(rates(2)))//new_line("a"))
  call say("error ["//trim(why)//"] "//achar(48 + len(why)/10)//"0"//new_line("a"))

contains

  subroutine say(text)
    use, intrinsic :: iso_c_binding, only: c_char, c_int, c_null_char
    character(*), intent(in) :: text
    interface
      integer(c_int) function printf(format) bind(C, name="printf")
        import
        character(kind=c_char), intent(in) :: format(*)
      end function
    end interface
    integer(c_int) :: written
    written = printf(text//c_null_char)
  end subroutine
end program
