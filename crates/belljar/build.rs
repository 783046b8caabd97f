//! Links the guest's program with the build id by which `belljar` recognises it.

fn main() -> Result<(), std::env::VarError> {
    let id = std::env::var("DEP_BELLJAR_GUEST_CONFIG_BUILD_ID")?;
    println!("cargo::rustc-link-arg-bin=belljar-guest=-Wl,--build-id=0x{id}");
    println!("cargo::rerun-if-env-changed=DEP_BELLJAR_GUEST_CONFIG_BUILD_ID");
    Ok(())
}
