/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef DISK_FAULTS_H
#define DISK_FAULTS_H

enum { DISK_SECTOR = 512 };
/** What is to happen to this call, which is counted; null: nothing. */
const char *disk_fault_of(const char *call);
/** 0: go on; else the errno of the failure. */
int disk_fault_errno(const char *fault);
#endif
