// The loops of reduce.h, compiled once for each instruction set that includes this file; all give the same bits.
// Everything is in an unnamed namespace: two copies of one inline function with different code would be one too many.
#pragma once
#include "reduce.h"
#include <cstring>
#include <tessera/plugin.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {
using tess_gloo::kReduceBlock;
using tess_gloo::Reduction;

template <class T>
T load(const void *base, size_t i) {
    T value;
    memcpy(&value, static_cast<const char *>(base) + i * sizeof(T), sizeof(T));
    return value;
}
template <class T>
void store(void *base, size_t i, T value) {
    memcpy(static_cast<char *>(base) + i * sizeof(T), &value, sizeof(T));
}
inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// A format: how it lies in memory, what it is summed in, and the way there and back.
template <class T>
struct Plain {
    using Stored = T;
    using Acc = T;
    static Acc widen(Stored x) { return x; }
    static Stored narrow(Acc x) { return x; }
};
struct Bf16 {
    using Stored = uint16_t;
    using Acc = float;
    static Acc widen(Stored x) { return float_of(static_cast<uint32_t>(x) << 16); }
    static Stored narrow(Acc x) { // to nearest, ties to even; NaN stays NaN
        uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        return static_cast<Stored>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
    }
};
struct F16 {
    using Stored = uint16_t;
    using Acc = float;
#ifdef __F16C__
    static Acc widen(Stored x) {
        return _cvtsh_ss(x);
    }
    static Stored narrow(Acc x) {
        return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
    }
#else
    static Acc widen(Stored x) {
        uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16, exponent = (x >> 10) & 31, mantissa = x & 0x3ff;
        if (exponent == 31)
            return float_of(sign | 0x7f800000 | (mantissa << 13) | (mantissa != 0 ? 0x400000 : 0));
        if (exponent != 0)
            return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
        float value = static_cast<float>(mantissa) * 0x1p-24f; // exact
        return sign != 0 ? -value : value;
    }
    static Stored narrow(Acc x) {
        uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
        if (rest > 0x7f800000)
            return static_cast<Stored>(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
        if (rest >= 0x477ff000)
            return static_cast<Stored>(sign | 0x7c00); // rounds past the largest finite number
        if (rest < 0x38800000) { // below the normal range: adding 0.5 puts the last kept bit at the end of the mantissa
            return static_cast<Stored>(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
        }
        return static_cast<Stored>(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13));
    }
#endif
};

template <class T>
struct Wrapping {
    using type = T;
}; // integers wrap, without signed overflow
template <>
struct Wrapping<int8_t> {
    using type = uint8_t;
};
template <>
struct Wrapping<int32_t> {
    using type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
    using type = uint64_t;
};

struct Sum {
    template <class T>
    static T of(T a, T b) {
        using W = typename Wrapping<T>::type;
        return static_cast<T>(static_cast<W>(static_cast<W>(a) + static_cast<W>(b)));
    }
};
// A NaN on either side comes through.
struct Min {
    template <class T>
    static T of(T a, T b) {
        return (a < b || a != a) ? a : b;
    }
};
struct Max {
    template <class T>
    static T of(T a, T b) {
        return (a > b || a != a) ? a : b;
    }
};

template <class In, class Op>
void combine_leaves(typename In::Acc *out, const void *a, const void *b, size_t m) {
    for (size_t i = 0; i < m; i++)
        out[i] = Op::of(In::widen(load<typename In::Stored>(a, i)), In::widen(load<typename In::Stored>(b, i)));
}
template <class In>
void take_leaf(typename In::Acc *out, const void *a, size_t m) {
    for (size_t i = 0; i < m; i++)
        out[i] = In::widen(load<typename In::Stored>(a, i));
}
template <class Acc, class Op>
void combine(Acc *into, const Acc *with, size_t m) {
    for (size_t i = 0; i < m; i++)
        into[i] = Op::of(into[i], with[i]);
}
template <class T>
T times(T value, double scale) {
    if constexpr (T(0.5) != T(0))
        return value * static_cast<T>(scale);
    else
        return value;
}
template <class Out, class Acc>
void finish(void *out, const Acc *sum, size_t m, const Reduction &r) {
    using Stored = typename Out::Stored;
    const double scale = r.scale != 0 ? r.scale : 1;
    if (r.add) {
        for (size_t i = 0; i < m; i++)
            store<Stored>(out, i,
                          Out::narrow(times<Acc>(Sum::of<Acc>(Out::widen(load<Stored>(out, i)), sum[i]), scale)));
    } else {
        for (size_t i = 0; i < m; i++)
            store<Stored>(out, i, Out::narrow(times<Acc>(sum[i], scale)));
    }
}

// One block through the binary counter: stack[k] holds the sum of weight[k] neighbouring leaves.
template <class In, class Op>
void reduce_block(const void *const *leaves, int n, size_t first, size_t m, typename In::Acc *stack) {
    using Acc = typename In::Acc;
    int weight[34], depth = 0;
    for (int i = 0; i < n;) {
        const size_t skip = first * sizeof(typename In::Stored);
        const char *a = static_cast<const char *>(leaves[i]) + skip;
        Acc *top = stack + depth * kReduceBlock;
        if (i + 1 < n)
            combine_leaves<In, Op>(top, a, static_cast<const char *>(leaves[i + 1]) + skip, m);
        else
            take_leaf<In>(top, a, m);
        weight[depth++] = i + 1 < n ? 2 : 1;
        i += 2;
        for (; depth > 1 && weight[depth - 1] == weight[depth - 2]; depth--) {
            combine<Acc, Op>(stack + (depth - 2) * kReduceBlock, stack + (depth - 1) * kReduceBlock, m);
            weight[depth - 2] *= 2;
        }
    }
    for (; depth > 1; depth--)
        combine<Acc, Op>(stack + (depth - 2) * kReduceBlock, stack + (depth - 1) * kReduceBlock, m);
}

template <class In, class Out, class Op>
void reduce(const void *const *leaves, int n, void *out, size_t elems, const Reduction &r, void *scratch) {
    auto *stack = static_cast<typename In::Acc *>(scratch);
    for (size_t at = 0; at < elems; at += kReduceBlock) {
        const size_t m = elems - at < kReduceBlock ? elems - at : kReduceBlock;
        reduce_block<In, Op>(leaves, n, at, m, stack);
        finish<Out>(static_cast<char *>(out) + at * sizeof(typename Out::Stored), stack, m, r);
    }
}

template <class In, class Out>
tess_gloo::ReduceFn pick_op(uint32_t redop) {
    switch (redop) {
    case TESS_SUM: return reduce<In, Out, Sum>;
    case TESS_MIN: return reduce<In, Out, Min>;
    case TESS_MAX: return reduce<In, Out, Max>;
    default: return nullptr;
    }
}

inline tess_gloo::ReduceFn pick(const Reduction &r) {
    if (r.in == TESS_BF16 && r.out == TESS_F32)
        return pick_op<Bf16, Plain<float>>(r.redop);
    if (r.in == TESS_F16 && r.out == TESS_F32)
        return pick_op<F16, Plain<float>>(r.redop);
    if (r.in != r.out)
        return nullptr;
    switch (r.in) {
    case TESS_F32: return pick_op<Plain<float>, Plain<float>>(r.redop);
    case TESS_F64: return pick_op<Plain<double>, Plain<double>>(r.redop);
    case TESS_BF16: return pick_op<Bf16, Bf16>(r.redop);
    case TESS_F16: return pick_op<F16, F16>(r.redop);
    case TESS_U8: return pick_op<Plain<uint8_t>, Plain<uint8_t>>(r.redop);
    case TESS_I8: return pick_op<Plain<int8_t>, Plain<int8_t>>(r.redop);
    case TESS_I32: return pick_op<Plain<int32_t>, Plain<int32_t>>(r.redop);
    case TESS_I64: return pick_op<Plain<int64_t>, Plain<int64_t>>(r.redop);
    default: return nullptr;
    }
}
} // namespace
