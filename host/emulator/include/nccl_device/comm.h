// SPDX-License-Identifier: Apache-2.0
// ncclDevComm lives in core.h.
#pragma once

#include "core.h"
