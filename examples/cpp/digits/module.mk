# SPDX-License-Identifier: Apache-2.0
$(BUILD)/obj/examples/cpp/digits/%.o: CPPFLAGS += $(TORCH_INCLUDE)
$(BUILD)/examples/digits: $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard examples/cpp/digits/*.cc)) $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS)
ALL += $(BUILD)/examples/digits
