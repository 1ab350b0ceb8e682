/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera doctor: what works on this machine, a row each, with the repair of what does not. */
#ifndef TOOL_DOCTOR_H
#define TOOL_DOCTOR_H
#include "tools/support/json_out.h"

/* A note costs speed or disables one part, and training still works. A bad finding prevents training. */
enum { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_BAD, DOCTOR_STATES };

typedef struct {
    int as_json;
    json_out json;
    int count[DOCTOR_STATES];
} doctor;

/** One row. `repair` is shown unless the state is DOCTOR_OK; null: there is none. */
void doctor_row(doctor *, int state, const char *what, const char *repair, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/** The last line. Returns the exit code: TOOL_OK where nothing is bad, else TOOL_FAILED. */
int doctor_verdict(doctor *);

/** Processor, memory, huge pages, limits, /dev/shm and the loopback interface. */
void doctor_machine(doctor *);
/** Checks this build's parts, the versions of its libraries, GPUs and NCCL. */
void doctor_libraries(doctor *);
/** Opens each plugin in a process of its own. */
void doctor_plugins(doctor *);
/** A training step of this command, on one rank and on two by each way to talk. */
void doctor_trials(doctor *);
#endif
