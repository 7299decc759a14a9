// The tables of a cache: which tokens sequences have, and in which pages they are. Tables are data, so what they say is checked
// where it is read: what does not fit is reported, and nothing is accessed then.

#define TABLES \
    const long long *starts, const long long *lengths, const long long *table, const long long *layers, \
        unsigned long long *report, long long start_step, long long length_step, long long table_row, \
        long long table_step, long long pages, long long layer_count, long long page, long long page_shift, \
        long long tokens, long long sequences, long long most

#define GIVEN_TABLES \
    Tables { \
        starts, lengths, table, layers, report, start_step, length_step, table_row, table_step, pages, layer_count, page, \
            page_shift, tokens, sequences, most \
    }

// The tokens of a sequence: the first one and how many there are now, and how many are in the cache already.
struct Sequence {
    long long first, count, cached;
};

struct Tables {
    const long long *starts, *lengths, *table, *layers;
    unsigned long long *report;
    long long start_step, length_step, table_row, table_step;
    long long pages, layer_count, page, page_shift, tokens, sequences, most;

    __device__ __forceinline__ long long start(long long sequence) const { return starts[sequence * start_step]; }

    // The layer, or -1.
    __device__ long long layer() const {
        const long long found = *layers;
        if (found >= 0 && found < layer_count) return found;
        complain(report, found, layer_count, 2);
        return -1;
    }

    // The number of the page that has a position.
    __device__ __forceinline__ long long number_of(long long position) const {
        return page_shift >= 0 ? position >> page_shift : position / page;
    }

    // A page of a sequence, or -1.
    __device__ __forceinline__ long long page_of(long long sequence, long long number) const {
        const long long found = table[sequence * table_row + number * table_step];
        if (found >= 0 && found < pages) return found;
        complain(report, found, pages, 0);
        return -1;
    }

    // A sequence; one without tokens if the tables do not fit.
    __device__ Sequence sequence(long long number) const {
        const long long first = start(number), end = start(number + 1), cached = lengths[number * length_step];
        const long long before = number == 0 ? 0 : first, after = number + 1 == sequences ? tokens : end;
        const long long room = (most < pages ? most : pages) * page;
        if (first != before || first < 0 || end < first || end > tokens || end != after) {
            complain(report, end, tokens, 0);
        } else if (cached < 0 || cached > room || end - first > room - cached) {
            complain(report, cached, room, 3);
        } else {
            return {first, end - first, cached};
        }
        return {0, 0, 0};
    }

    // The sequence of a token: the last one that starts at it or before.
    __device__ long long sequence_of(long long token) const {
        long long low = 0, high = sequences;
        while (high - low > 1) {
            const long long middle = (low + high) / 2;
            if (start(middle) <= token) low = middle; else high = middle;
        }
        return low;
    }
};
