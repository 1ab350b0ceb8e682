/* SPDX-License-Identifier: BSD-3-Clause */
// Two ranks prove to each other, before any data, that they are of this job and communicator, and which rank they are.
// Each rank puts a fresh key on its card in the key-value store, which only ranks of the job can read; a proof is an
// HMAC under both keys over the communicator's name, the side, both ranks and both nonces.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <sys/socket.h>

namespace tess_gloo {

using Bytes32 = std::array<unsigned char, 32>;
Bytes32 random_bytes(); // throws Failure

struct Card {                                      // a rank's entry in the key-value store
    static constexpr uint32_t kMagic = 0x32434754; // "TGC2"
    uint32_t magic, nranks;
    struct sockaddr_storage address;
    Bytes32 key;
};

struct Greeting {                                  // the listening side sends it
    static constexpr uint32_t kMagic = 0x32474754; // "TGG2"
    uint32_t magic;
    Bytes32 nonce;
};
struct Answer { // the connecting side sends it; the listener replies with a bare proof
    static constexpr uint32_t kMagic = 0x32414754; // "TGA2"
    uint32_t magic, rank;
    Bytes32 nonce, proof;
};
static_assert(sizeof(Greeting) == 36 && sizeof(Answer) == 72, "sent as they are");

struct Meeting { // rank `low` listens, rank `high` connects
    const std::string &group;
    const Bytes32 &low_key, &high_key;
    uint32_t low, high;
    Bytes32 low_nonce, high_nonce;
};
enum class Side : unsigned char { kListens = 'L', kConnects = 'C' };
Bytes32 prove(const Meeting &, Side);
bool same(const Bytes32 &, const Bytes32 &); // takes as long whatever they hold

} // namespace tess_gloo
