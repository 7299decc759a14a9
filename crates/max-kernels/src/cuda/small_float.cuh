// Floats of at most eight bits, as their formats declare them: bits, bits of the fraction, bias, the bits of the largest
// number, of what exceeds it (both without sign), and what there is besides numbers.

#define INFINITE 0
#define WITH_NAN 1
#define NAN_FOR_NEGATIVE_ZERO 2
#define FINITE 3
#define SCALE 4

template <int BITS, int FRACTION, int BIAS, unsigned MAX, unsigned OVERFLOW, int SPECIAL> struct Small {
    static constexpr unsigned TOP = 1u << (BITS - 1);

    static __device__ __forceinline__ float widen(unsigned bits) {
        if (SPECIAL == SCALE) {
            const unsigned number = bits == 0 ? 1u << 22 : bits << 23;
            return __uint_as_float(bits > MAX ? 0x7fffffffu : number);
        }
        const unsigned magnitude = bits & (TOP - 1);
        // The exponent moves by a product, which makes subnormal numbers normal.
        const float scaled = __uint_as_float(magnitude << (23 - FRACTION)) * __uint_as_float((254u - BIAS) << 23);
        unsigned value = __float_as_uint(scaled);
        if (magnitude > MAX) value = 0x7fffffffu;
        if (SPECIAL == INFINITE && magnitude == OVERFLOW) value = 0x7f800000u;
        value |= (bits & TOP) << (32 - BITS);
        return __uint_as_float(SPECIAL == NAN_FOR_NEGATIVE_ZERO && bits == TOP ? 0x7fffffffu : value);
    }

    static __device__ __forceinline__ unsigned char narrow(float value) {
        const unsigned bits = __float_as_uint(value);
        if (SPECIAL == SCALE) {
            const unsigned number = bits <= 1u << 22 ? 0 : (bits + (1u << 22)) >> 23;
            // Zero wraps; negative numbers, infinity and NaN are beyond.
            return (unsigned char)(bits - 1 >= 0x7f7fffffu ? OVERFLOW : number);
        }
        const unsigned sign = (bits >> (32 - BITS)) & TOP;
        if (value != value) {
            return (unsigned char)(SPECIAL == NAN_FOR_NEGATIVE_ZERO ? TOP : SPECIAL == FINITE ? sign ^ TOP : sign | (TOP - 1));
        }
        const unsigned rounded = magnitude_of(bits & 0x7fffffffu);
        if (SPECIAL == NAN_FOR_NEGATIVE_ZERO && rounded == 0) return 0;
        return (unsigned char)(rounded | sign);
    }

    // The bits of the number nearest to a positive one, ties to even.
    static __device__ __forceinline__ unsigned magnitude_of(unsigned bits) {
        constexpr int SHIFT = 23 - FRACTION;
        const unsigned half = (1u << (SHIFT - 1)) - 1 + ((bits >> SHIFT) & 1);
        const unsigned normal = (bits - ((127u - BIAS) << 23) + half) >> SHIFT;
        // Below the normal numbers: in the sum with this power of two, the last place is that of the format.
        const float unit = __uint_as_float((127u + 24 - BIAS - FRACTION) << 23);
        const unsigned subnormal = __float_as_uint(__fadd_rn(__uint_as_float(bits), unit)) - __float_as_uint(unit);
        const unsigned finite = bits < ((128u - BIAS) << 23) ? subnormal : normal;
        return finite > MAX ? OVERFLOW : finite;
    }
};
