// SPDX-License-Identifier: Apache-2.0
// Marks what libaf_collectives.so shows to its users; everything else is hidden.
#pragma once

#define AF_PUBLIC __attribute__((visibility("default")))
