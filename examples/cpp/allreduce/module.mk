# SPDX-License-Identifier: Apache-2.0
$(BUILD)/examples/allreduce: $(BUILD)/obj/examples/cpp/allreduce/main.o $(BUILD)/lib/libaf_collectives.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_collectives
ALL += $(BUILD)/examples/allreduce
