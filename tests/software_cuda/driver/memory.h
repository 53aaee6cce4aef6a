// Memory of the software CUDA: the host's, each allocation between pages that nobody may touch.
#pragma once
#include "streams.h"

namespace software_cuda {

struct Span { uint64_t begin, end; };

// The allocation that an address is in, of a GPU or page-locked; {0, 0}: in none.
Span allocation_at(uint64_t address);

}  // namespace software_cuda
