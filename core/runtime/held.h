/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes that the program holds beside the engine, by its own word (tess_ledger_held): activations that no plan has. */
#ifndef TESS_HELD_H
#define TESS_HELD_H
#include <tessera/inspect.h>

typedef struct {
    tess_held_fn fn;
    void *user;
    uint64_t now, most; /* held */
    uint64_t whole;     /* held and booked at the same time, at most */
} tess__held;

/** Asks the program, `booked` bytes having been alive since it was asked last. Null: it says nothing. */
void tess__held_ask(tess__held *, uint64_t booked);
#endif
