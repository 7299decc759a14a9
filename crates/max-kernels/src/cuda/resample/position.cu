// Where results are on the source: ratios of integers, so that every device finds the same neighbours.

#define HALF_PIXEL 0
#define ALIGN_CORNERS 1
#define ASYMMETRIC 2
#define HALF_PIXEL_1D 3

// Quotient and remainder; most numbers fit in 32 bits, which divide much faster.
__device__ __forceinline__ long long divide(long long number, long long by, long long &rest) {
    if ((((unsigned long long)number | (unsigned long long)by) >> 32) == 0) {
        const unsigned int quotient = (unsigned int)number / (unsigned int)by;
        rest = (unsigned int)number - quotient * (unsigned int)by;
        return quotient;
    }
    long long quotient = number / by;
    rest = number - quotient * by;
    if (rest < 0) {
        rest += by;
        quotient--;
    }
    return quotient;
}

// base + rest / whole.
struct Position {
    long long base, rest, whole;
};

__device__ __forceinline__ Position position(long long at, long long size, long long count) {
    long long number = at * size, by = count;
    if (COORDINATES == HALF_PIXEL || COORDINATES == HALF_PIXEL_1D) {
        number = (2 * at + 1) * size - count;
        by = 2 * count;
    }
    if (COORDINATES == ALIGN_CORNERS) {
        number = at * (size - 1);
        by = count - 1;
    }
    if (count == 1 && (COORDINATES == ALIGN_CORNERS || COORDINATES == HALF_PIXEL_1D)) {
        number = 0;
        by = 1;
    }
    Position p;
    p.base = divide(number, by, p.rest);
    p.whole = by;
    return p;
}

__device__ __forceinline__ long long clamp(long long at, long long size) {
    return at < 0 ? 0 : at < size ? at : size - 1;
}

#define HALF_DOWN 0
#define HALF_UP 1
#define DOWN 2
#define UP 3

__device__ __forceinline__ long long nearest(const Position p, long long size) {
    const bool up = ROUNDING == HALF_DOWN ? 2 * p.rest > p.whole
                  : ROUNDING == HALF_UP   ? 2 * p.rest >= p.whole
                  : ROUNDING == UP        ? p.rest > 0
                                          : false;
    return clamp(p.base + up, size);
}
