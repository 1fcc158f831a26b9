# SPDX-License-Identifier: Apache-2.0
$(BUILD)/obj/examples/cpp/data_parallel/%.o: CPPFLAGS += $(TORCH_INCLUDE)
$(BUILD)/obj/examples/cpp/data_parallel/%.o: CXXFLAGS += -g1
$(BUILD)/obj/examples/cpp/data_parallel/main.o: | $(TORCH_PRECOMPILED).gch
$(BUILD)/examples/data_parallel: $(BUILD)/obj/examples/cpp/data_parallel/main.o $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS)
ALL += $(BUILD)/examples/data_parallel
