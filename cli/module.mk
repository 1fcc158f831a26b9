# SPDX-License-Identifier: Apache-2.0
# The command line `af`: works offline, from the site file alone.
$(BUILD)/bin/af: $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard cli/*.cc)) $(BUILD)/obj/libcommon.a
	$(LINK) $(COMMON_LIBS)
$(eval $(call unit_test,cli,$(filter-out $(BUILD)/obj/cli/main.o,$(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard cli/*.cc))) $(BUILD)/obj/libcommon.a,$(COMMON_LIBS)))
ALL += $(BUILD)/bin/af
