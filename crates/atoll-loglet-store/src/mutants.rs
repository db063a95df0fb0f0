//! Known bugs of the Loglet store; tests inject them. Each names the scenarios of the simulator in which an oracle must find it.

atoll_core::mutants! {
    X16_FLOOR = "X16Floor", caught by ["vlog-retries"];
    NATIVE_T10 = "NativeT10", caught by ["native", "virtuallog"];
    NATIVE_T12 = "NativeT12", caught by ["native", "virtuallog"];
    /// A pad is appended although its offset is taken.
    PADS_PILE_UP = "PadsPileUp", caught by ["striped"];
    VLOG_V22 = "VlogV22", caught by ["vlog-retries"];
}
