/* SPDX-License-Identifier: BSD-3-Clause */
/* Nothing of its own: a library under the name that dlopen asks for, over libdoubles.so. */
typedef int tessera_doubles_are_elsewhere;
