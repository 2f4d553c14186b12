//! Compiles `proto/*.proto` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO_DIR: &str = "../../proto";
    println!("cargo::rerun-if-changed={PROTO_DIR}");
    let descriptors = protox::compile(["csi.proto", "lvmd.proto", "pluginregistration.proto"], [PROTO_DIR])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
