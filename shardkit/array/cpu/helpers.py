"""Functions that Numba's code calls in Numba's own library, in LLVM's language.

Code that is kept must run where Numba is not loaded. Loops get C-contiguous arrays, and make
buffers of their own: that needs little.
"""

# struct MemInfo of Numba: count, destructor, its argument, data, bytes, allocator
HELPERS = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %bytes, i32 %alignment) {
  %room = zext i32 %alignment to i64
  %more = add i64 %room, 48
  %whole = add i64 %bytes, %more
  %memory = call ptr @malloc(i64 %whole)
  %is_full = icmp eq ptr %memory, null
  br i1 %is_full, label %full, label %found
full:
  ret ptr null
found:
  store i64 1, ptr %memory
  %destructor = getelementptr ptr, ptr %memory, i64 1
  store ptr null, ptr %destructor
  %argument = getelementptr ptr, ptr %memory, i64 2
  store ptr null, ptr %argument
  %first = ptrtoint ptr %memory to i64
  %behind = add i64 %first, 47
  %beyond = add i64 %behind, %room
  %lost = urem i64 %beyond, %room
  %start = sub i64 %beyond, %lost
  %offset = sub i64 %start, %first
  %data = getelementptr i8, ptr %memory, i64 %offset
  %place = getelementptr ptr, ptr %memory, i64 3
  store ptr %data, ptr %place
  %size = getelementptr i64, ptr %memory, i64 4
  store i64 %bytes, ptr %size
  %allocator = getelementptr ptr, ptr %memory, i64 5
  store ptr null, ptr %allocator
  ret ptr %memory
}

define void @NRT_MemInfo_call_dtor(ptr %memory) {
  call void @free(ptr %memory)
  ret void
}

define i32 @numba_attempt_nocopy_reshape(i64 %old_ndim, ptr %old_shape, ptr %old_strides,
                                         i64 %ndim, ptr %shape, ptr %strides, i64 %item_bytes,
                                         i32 %is_fortran) {
begin:
  br label %loop
loop:
  %number = phi i64 [ %ndim, %begin ], [ %below, %body ]
  %stride = phi i64 [ %item_bytes, %begin ], [ %next, %body ]
  %is_over = icmp eq i64 %number, 0
  br i1 %is_over, label %end, label %body
body:
  %below = sub i64 %number, 1
  %to = getelementptr i64, ptr %strides, i64 %below
  store i64 %stride, ptr %to
  %from = getelementptr i64, ptr %shape, i64 %below
  %length = load i64, ptr %from
  %next = mul i64 %stride, %length
  br label %loop
end:
  ret i32 1
}
"""
