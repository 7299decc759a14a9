// Copies between strided layouts: each thread moves whole units of UNIT bytes, one after the other. Strides are in
// bytes; unused axes have size one and stride zero. The last axis varies fastest.

#if UNIT == 1
typedef unsigned char Unit;
#elif UNIT == 2
typedef unsigned short Unit;
#elif UNIT == 4
typedef unsigned int Unit;
#elif UNIT == 8
typedef unsigned long long Unit;
#else
typedef uint4 Unit;
#endif

typedef long long Int;

// Index divisions use 32 bits wherever they fit.
template <typename Index>
static __device__ void move(char* to, const char* from, Index count, const Int* sizes, const Int* out, const Int* in) {
  Index step = (Index)gridDim.x * blockDim.x;
  for (Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x; at < count;) {
    Index rest = at;
    Int target = 0, source = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; axis--) {
      Index size = (Index)sizes[axis], outer = rest / size;
      Int index = (Int)(rest - outer * size);
      target += index * out[axis];
      source += index * in[axis];
      rest = outer;
    }
    *(Unit*)(to + target) = *(const Unit*)(from + source);
    if (count - at <= step) break;  // a sum beyond the count might overflow
    at += step;
  }
}

extern "C" __global__ void NAME(char* to, const char* from, unsigned long long count,
                                Int n0, Int o0, Int i0, Int n1, Int o1, Int i1, Int n2, Int o2, Int i2,
                                Int n3, Int o3, Int i3, Int n4, Int o4, Int i4, Int n5, Int o5, Int i5) {
  const Int sizes[AXES] = {n0, n1, n2, n3, n4, n5}, out[AXES] = {o0, o1, o2, o3, o4, o5}, in[AXES] = {i0, i1, i2, i3, i4, i5};
  if (count <= 0xffffffffull)
    move<unsigned int>(to, from, (unsigned int)count, sizes, out, in);
  else
    move<unsigned long long>(to, from, count, sizes, out, in);
}
