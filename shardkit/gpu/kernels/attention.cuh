// What the kernels of attention share: arrays with strides, which rows a block computes, which keys a query sees.

#define ARRAY(type, name) type* name, long long name##_sample, long long name##_head, long long name##_row
#define AT(name, b, h) (name + (b) * name##_sample + (h) * name##_head)

// A block's part of the work: `tile` of the `num_rows` rows of one head of one sample. The last tiles, which see most, come first
// if `last_first`.
template <class Int> struct Place { Int sample, head, first; };

template <class Int> __device__ __forceinline__ Place<Int>
place(Int number, Int num_heads, Int num_rows, int tile, bool last_first) {
    Int tiles = (num_rows + tile - 1) / tile, here = number % tiles, head = number / tiles;
    return {head / num_heads, head % num_heads, (last_first ? tiles - 1 - here : here) * tile};
}

// The last key that a query sees.
template <class Int> __device__ __forceinline__ Int last_key(Int query, Int num_keys, Int first) {
    return first + query < num_keys ? first + query : num_keys - 1;
}

// The first key that a query sees, where the first query sees those from `lowest` on, which may be below 0.
template <class Int> __device__ __forceinline__ Int first_key(Int query, Int lowest) {
    return lowest + query > 0 ? lowest + query : 0;
}

// The first query that sees no key of a tile and those before it.
template <class Int> __device__ __forceinline__ Int
seeing_queries(Int first_key, int tile, Int num_queries, Int lowest) {
    Int stop = first_key + tile - lowest;
    return stop < num_queries ? (stop > 0 ? stop : 0) : num_queries;
}

// The number of keys that some query of a tile sees.
template <class Int> __device__ __forceinline__ Int
seen_keys(Int first_query, int tile, Int num_queries, Int num_keys, Int first) {
    Int last = first_query + tile < num_queries ? first_query + tile - 1 : num_queries - 1;
    return last_key(last, num_keys, first) + 1;
}
