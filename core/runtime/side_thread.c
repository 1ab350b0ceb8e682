/* SPDX-License-Identifier: BSD-3-Clause */
#include "side_thread.h"

tess_status tess__side_thread_start(tess__side_thread *s, void *(*fn)(void *), void *arg) {
    if (pthread_create(&s->thread, NULL, fn, arg))
        return tess__fail(TESS_E_SYSTEM, "no thread to write a checkpoint");
    s->runs = 1;
    return TESS_OK;
}

void tess__side_thread_join(tess__side_thread *s) {
    if (s->runs)
        pthread_join(s->thread, NULL);
    s->runs = 0;
}
