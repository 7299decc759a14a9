// The sizes of the AXES indexed axes, the distances between their elements, the number of the first one, and the distance
// between the indices for them.
struct Indexed {
    long long sizes[AXES + 1], strides[AXES + 1], axis, step;
};

// Where the element is that indices mean; false, after a report if `reports` is set, if one of them is out of range. Each is
// read once. Negative ones count from the end.
__device__ __forceinline__ bool find(
    const Indexed &indexed, const INDEX *indices, bool reports, unsigned long long *report, long long &place) {
    place = 0;
#pragma unroll
    for (int c = 0; c < AXES; c++) {
        const INDEX index = indices[c * indexed.step];
        const long long size = indexed.sizes[c];
        const bool behind = INDEX_IS_NEGATIVE(index);
        const bool inside =
            behind ? (long long)index >= -size : (unsigned long long)index < (unsigned long long)size;
        if (!inside) {
            if (reports) {
                const long long most = 0x7fffffffffffffffll;
                const bool large = !behind && (unsigned long long)index > (unsigned long long)most;
                complain(report, large ? most : (long long)index, size, indexed.axis + c);
            }
            return false;
        }
        place += ((long long)index + (behind ? size : 0)) * indexed.strides[c];
    }
    return true;
}

