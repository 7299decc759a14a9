// The parameters of a convolution. A window is what the taps see from one position, in the order of rows, columns and
// channels; positions are numbered through batch, height and width. Where windows are long and positions few, the
// second axis of the grid splits windows into parts, whose sums are separate results, one after the other in memory.

#define PARAMETERS \
    const IN *input, const IN *filter, OUT *out, long long batch, long long out_height, long long out_width, \
        long long filters, long long height, long long width, long long channels, long long taps_down, \
        long long taps_across, long long stride_down, long long stride_across, long long dilation_down, \
        long long dilation_across, long long padding_down, long long padding_across, long long groups, \
        long long in_batch, long long in_down, long long in_across, long long in_channel, long long tap_down, \
        long long tap_across, long long tap_channel, long long tap_filter, long long out_batch, long long out_down, \
        long long out_across, long long out_filter, long long whole_input, long long whole_filter, \
        long long part, long long part_size

// Quotient and remainder; most numbers fit in 32 bits, which divide much faster.
__device__ __forceinline__ long long divide(long long number, long long by, long long &rest) {
    if ((((unsigned long long)number | (unsigned long long)by) >> 32) == 0) {
        const unsigned int quotient = (unsigned int)number / (unsigned int)by;
        rest = (unsigned int)number - quotient * (unsigned int)by;
        return quotient;
    }
    const long long quotient = number / by;
    rest = number - quotient * by;
    return quotient;
}

// A position whose taps are all outside the image.
#define NOWHERE (-(1ll << 62))

// Where the window of a position starts: its image, its row and its column.
struct Window {
    long long image, y, x;
};

#define WINDOW(position, window) \
    do { \
        long long line, column; \
        line = divide(position, out_width, column); \
        const long long number = divide(line, out_height, line); \
        (window).image = number * in_batch; \
        (window).y = line * stride_down - padding_down; \
        (window).x = column * stride_across - padding_across; \
    } while (0)

#define PLACE(position, place) \
    do { \
        long long line, column; \
        line = divide(position, out_width, column); \
        const long long number = divide(line, out_height, line); \
        (place) = number * out_batch + line * out_down + column * out_across; \
    } while (0)

__device__ __forceinline__ bool within(long long at, long long size) {
    return (unsigned long long)at < (unsigned long long)size;
}
