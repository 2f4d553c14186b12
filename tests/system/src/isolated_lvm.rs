//! Runs LVM commands that see one device, as in a virtual machine whose only disk it is.

/// Path of the device for the command.
pub const DEVICE: &str = "/dev/vda";

/// Shell script, for a separate mount namespace, that runs a command of LVM with one device: its arguments are the path
/// of the device and the command.
pub const RUN_WITH_ONE_DEVICE: &str = r#"
    dev=$(mktemp -d /run/dev.XXXX)
    mkdir $dev/mapper
    cp -a "$(readlink -f $1)" $dev/vda
    cp -a /dev/null /dev/zero /dev/urandom $dev
    cp -a /dev/mapper/control $dev/mapper
    mount --bind $dev /dev
    program=$2
    shift 2
    exec $program --config "devices/scan_lvs=1 devices/use_devicesfile=0 devices/hints=\"none\"
        devices/global_filter=[\"a|.*|\"] devices/filter=[\"a|.*|\"]" "$@""#;
