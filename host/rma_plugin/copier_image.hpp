// SPDX-License-Identifier: Apache-2.0
// The copier's kernel as the driver loads it; an empty text in builds without nvcc.
#pragma once

extern "C" const unsigned char gimlet_rma_copier_image[];
