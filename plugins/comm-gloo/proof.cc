/* SPDX-License-Identifier: BSD-3-Clause */
#include "proof.h"
#include "failure.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <vector>

namespace tess_gloo {

Bytes32 random_bytes() {
    Bytes32 bytes;
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        throw Failure(TESS_E_SYSTEM, -1, "gloo: the system gives no random bytes");
    return bytes;
}

template <class T>
static void append_value(std::vector<unsigned char> &text, const T &value) {
    const auto *bytes = reinterpret_cast<const unsigned char *>(&value);
    text.insert(text.end(), bytes, bytes + sizeof value);
}

Bytes32 prove(const Meeting &m, Side side) {
    std::vector<unsigned char> key(m.low_key.begin(), m.low_key.end()), text;
    key.insert(key.end(), m.high_key.begin(), m.high_key.end());
    append_value(text, side);
    append_value(text, m.low);
    append_value(text, m.high);
    append_value(text, m.low_nonce);
    append_value(text, m.high_nonce);
    text.insert(text.end(), m.group.begin(), m.group.end());
    Bytes32 proof;
    unsigned size = proof.size();
    if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(), proof.data(), &size))
        throw Failure(TESS_E_SYSTEM, -1, "gloo: OpenSSL computes no HMAC");
    return proof;
}

bool same(const Bytes32 &a, const Bytes32 &b) {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

} // namespace tess_gloo
