// SPDX-License-Identifier: BSD-3-Clause
// The library has no C interface. No exception leaves this file.
#include "sentence_model.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sentencepiece_processor.h>

struct sentence_model {
    sentencepiece::SentencePieceProcessor processor;
};

sentence_model *sentence_model_create(const char *data, size_t bytes, char *why, size_t room) {
    std::snprintf(why, room, "no memory");
    try {
        auto made = std::make_unique<sentence_model>();
        const auto status = made->processor.LoadFromSerializedProto(std::string(data, bytes));
        if (status.ok() && made->processor.GetPieceSize() > 0)
            return made.release();
        std::snprintf(why, room, "%s", status.ok() ? "it has no pieces" : status.ToString().c_str());
    } catch (...) {
    }
    return nullptr;
}

void sentence_model_destroy(sentence_model *m) {
    delete m;
}

int32_t sentence_model_size(const sentence_model *m) {
    return m->processor.GetPieceSize();
}

int32_t sentence_model_begin(const sentence_model *m) {
    return m->processor.bos_id();
}

int32_t sentence_model_end(const sentence_model *m) {
    return m->processor.eos_id();
}

size_t sentence_model_piece(const sentence_model *m, int32_t id, char *out, size_t room, int *is_name) {
    const std::string &piece = m->processor.IdToPiece(id);
    const size_t n = piece.size() < room ? piece.size() : room - 1;
    std::memcpy(out, piece.data(), n);
    out[n] = '\0';
    *is_name = m->processor.IsControl(id) || m->processor.IsUnknown(id);
    return n;
}

int sentence_model_encode(const sentence_model *m, const char *text, size_t bytes, sentence_model_fn fn, void *user) {
    try {
        std::vector<int> ids;
        const auto status = m->processor.Encode(std::string(text, bytes), &ids);
        static_assert(sizeof(int) == sizeof(int32_t), "ids are of 32 bits");
        return status.ok() && fn(user, ids.data(), ids.size());
    } catch (...) {
        return 0;
    }
}
