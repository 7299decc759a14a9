// Elements as unsigned keys in the same order, packed with their positions, so that no two of a line are equal.
// BITS is the unsigned type as wide as an element, KIND what elements are, IS_NAN(x) tells the bits of NaN, UNUSED is
// the number of bits at the top that have no meaning.

#define UNSIGNED 0
#define SIGNED 1
#define FLOAT 2
#define BOOL 3

constexpr int WIDTH = sizeof(BITS);
constexpr BITS SIGN = (BITS)((BITS)1 << (8 * WIDTH - 1));

__device__ __forceinline__ BITS key_of(BITS element) {
    const BITS x = (BITS)(element << UNUSED);
    BITS key = x;
    if (KIND == BOOL) key = x != 0;
    if (KIND == SIGNED) key = x ^ SIGN;
    if (KIND == FLOAT) {
        // The keys of both zeros meet in the middle, which leaves room for NaN at the top.
        key = x >= SIGN ? (BITS)~x : (BITS)(x + (BITS)(SIGN - 1));
        if (IS_NAN(x)) key = (BITS)~(BITS)0;
    }
    return DESCENDING ? (BITS)~key : key;
}

// Digits are bytes, the highest first: those of the key, then those of the position.
constexpr int DIGITS = WIDTH + 4;

#if WIDE
struct Packed { unsigned long long key; unsigned int index; };

__device__ __forceinline__ Packed pack(BITS x, unsigned int index) { return {key_of(x), index}; }
__device__ __forceinline__ Packed last() { return {~0ull, ~0u}; }
__device__ __forceinline__ unsigned int index_of(const Packed &x) { return x.index; }
__device__ __forceinline__ bool less(const Packed &a, const Packed &b) {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}
__device__ __forceinline__ unsigned int digit(const Packed &x, int d) {
    return d < 8 ? (unsigned int)(x.key >> (56 - 8 * d)) & 255u : x.index >> (88 - 8 * d) & 255u;
}
// The first d digits, as a value that orders like them.
__device__ __forceinline__ Packed head(const Packed &x, int d) {
    if (d == 0) return {0, 0};
    if (d <= 8) return {x.key >> (64 - 8 * d), 0};
    return {x.key, x.index >> (96 - 8 * d)};
}
__device__ __forceinline__ Packed with_digit(const Packed &x, int d, unsigned int digit) {
    if (d < 8) return {x.key | (unsigned long long)digit << (56 - 8 * d), x.index};
    return {x.key, x.index | digit << (88 - 8 * d)};
}
__device__ __forceinline__ Packed none() { return {0, 0}; }
#else
typedef unsigned long long Packed;

__device__ __forceinline__ Packed pack(BITS x, unsigned int index) { return (Packed)key_of(x) << 32 | index; }
__device__ __forceinline__ Packed last() { return ~0ull; }
__device__ __forceinline__ unsigned int index_of(Packed x) { return (unsigned int)x; }
__device__ __forceinline__ bool less(Packed a, Packed b) { return a < b; }
__device__ __forceinline__ unsigned int digit(Packed x, int d) { return (unsigned int)(x >> 8 * (DIGITS - 1 - d)) & 255u; }
__device__ __forceinline__ Packed head(Packed x, int d) { return d == 0 ? 0 : x >> 8 * (DIGITS - d); }
__device__ __forceinline__ Packed with_digit(Packed x, int d, unsigned int digit) {
    return x | (Packed)digit << 8 * (DIGITS - 1 - d);
}
__device__ __forceinline__ Packed none() { return 0; }
#endif

// Where lines are: the sizes of up to four axes of lines, and strides of elements.
struct Places {
    long long size[4], stride[4], step;

    __device__ __forceinline__ long long of(long long line) const {
        long long place = 0;
        for (int axis = 3; axis >= 0; axis--) {
            if (size[axis] == 1) continue;
            const long long rest = line / size[axis];
            place += (line - rest * size[axis]) * stride[axis];
            line = rest;
        }
        return place;
    }
};

// Puts two elements in order.
__device__ __forceinline__ void order(Packed *x, unsigned int a, unsigned int b) {
    const Packed first = x[a], second = x[b];
    if (less(second, first)) {
        x[a] = second;
        x[b] = first;
    }
}

// One step of a bitonic merge in shared memory: elements at a distance, or mirrored in blocks of twice the distance.
__device__ __forceinline__ void step_in_block(Packed *x, unsigned int length, unsigned int distance, bool mirrored) {
    for (unsigned int pair = threadIdx.x; pair < length / 2; pair += blockDim.x) {
        const unsigned int within = pair & (distance - 1), start = (pair - within) * 2;
        order(x, start + within, start + (mirrored ? 2 * distance - 1 - within : distance + within));
    }
    __syncthreads();
}

// Sorts a power of two of elements in shared memory. All comparisons put the smaller element first.
__device__ void sort_in_block(Packed *x, unsigned int length) {
    for (unsigned int half = 1; half < length; half *= 2) {
        step_in_block(x, length, half, true);
        for (unsigned int distance = half / 2; distance > 0; distance /= 2) step_in_block(x, length, distance, false);
    }
}

// A line and its results, whose addresses are null where they are not wanted.
struct Line {
    const BITS *elements;
    BITS *values;
    long long *indices;
    long long size, step, values_step, indices_step;

    __device__ __forceinline__ Packed at(long long i) const { return pack(elements[i * step], (unsigned int)i); }

    // Writes an element to a position of the results. Memory may change while a kernel runs, so its own is checked.
    __device__ __forceinline__ void put(long long position, const Packed &x) const {
        const long long found = index_of(x), index = found < size ? found : 0;
        if (values) values[position * values_step] = elements[index * step];
        if (indices) indices[position * indices_step] = index;
    }
};

#define LINE(line) \
    {source + from.of(line), values ? values + to_values.of(line) : nullptr, \
     indices ? indices + to_indices.of(line) : nullptr, size, from.step, to_values.step, to_indices.step}

#define PLACES(name) \
    long long name##_0, long long name##_1, long long name##_2, long long name##_3, long long name##_step
#define PLACES_OF(name) \
    {{size_0, size_1, size_2, size_3}, {name##_0, name##_1, name##_2, name##_3}, name##_step}
