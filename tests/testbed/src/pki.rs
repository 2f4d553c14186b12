//! The certificates of one cluster: two authorities, the certificates of the control plane, and those for tests.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Name of the authority that signs the certificates of servers, users, nodes and webhooks.
const CLUSTER_AUTHORITY: &str = "ca";
/// Name of the authority for aggregated API servers. kube-apiserver refuses to start when it is also the one for
/// clients.
const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";
/// Name of the key that signs service-account tokens.
const SERVICE_ACCOUNT_KEY: &str = "sa";

/// A certificate and its private key, both PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Certificate.
    pub certificate: String,
    /// Private key (PKCS#8).
    pub key: String,
}

impl Identity {
    /// Reads the files of [`Identity::write`].
    pub fn read(directory: &Path, name: &str) -> Result<Self> {
        let part = |extension| read(&directory.join(format!("{name}.{extension}")));
        Ok(Self { certificate: part("crt")?, key: part("key")? })
    }

    /// Writes `NAME.crt` and `NAME.key` into `directory`.
    pub fn write(&self, directory: &Path, name: &str) -> Result<()> {
        write(&directory.join(format!("{name}.crt")), &self.certificate)?;
        write(&directory.join(format!("{name}.key")), &self.key)
    }
}

/// The authorities, kept as files in one directory.
#[derive(Debug)]
pub struct Pki {
    directory: PathBuf,
    authority: Authority,
}

impl Pki {
    /// Creates both authorities and the key for service-account tokens in the existing directory `directory`.
    pub fn create(directory: &Path) -> Result<Self> {
        let authority = Authority::create(directory, CLUSTER_AUTHORITY)?;
        let front_proxy = Authority::create(directory, FRONT_PROXY_AUTHORITY)?;
        front_proxy.issue(&client("front-proxy", None))?.write(directory, "front-proxy")?;
        let tokens = KeyPair::generate().context("generate the key for service-account tokens")?;
        write(&directory.join(format!("{SERVICE_ACCOUNT_KEY}.key")), &tokens.serialize_pem())?;
        write(&directory.join(format!("{SERVICE_ACCOUNT_KEY}.pub")), &tokens.public_key_pem())?;
        Ok(Self { directory: directory.to_owned(), authority })
    }

    /// Opens the authorities that were created in `directory` earlier.
    pub fn open(directory: &Path) -> Result<Self> {
        Ok(Self { directory: directory.to_owned(), authority: Authority::open(directory, CLUSTER_AUTHORITY)? })
    }

    /// Returns the path of the file `NAME` in the directory: `ca.crt`, `front-proxy-ca.crt`, `front-proxy.crt`,
    /// `front-proxy.key`, `sa.pub`, `sa.key`, and the files of [`Identity::write`].
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the certificate of the cluster's authority, PEM: the one that clients trust, and the `caBundle` of a
    /// webhook.
    pub fn authority(&self) -> &str {
        &self.authority.certificate
    }

    /// Issues a client certificate: Kubernetes reads the user from the common name and the group from the organization.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.authority.issue(&client(user, group))
    }

    /// Issues a server certificate for DNS names and addresses. `user` and `group` are those of the server (kubelet's
    /// are its node's).
    pub fn server(&self, user: &str, group: Option<&str>, names: &[&str], addresses: &[IpAddr]) -> Result<Identity> {
        let mut parameters = subject(user, group);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let name = (*name).try_into().with_context(|| format!("{name:?} is no DNS name"))?;
            parameters.subject_alt_names.push(SanType::DnsName(name));
        }
        parameters.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        self.authority.issue(&parameters)
    }
}

#[derive(Debug)]
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn create(directory: &Path, name: &str) -> Result<Self> {
        let key = KeyPair::generate().with_context(|| format!("generate the key of {name}"))?;
        let certificate = authority(name).self_signed(&key).with_context(|| format!("sign {name}"))?.pem();
        Identity { certificate: certificate.clone(), key: key.serialize_pem() }.write(directory, name)?;
        Ok(Self { certificate, issuer: Issuer::new(authority(name), key) })
    }

    fn open(directory: &Path, name: &str) -> Result<Self> {
        let certificate = read(&directory.join(format!("{name}.crt")))?;
        let key = KeyPair::from_pem(&read(&directory.join(format!("{name}.key")))?)
            .with_context(|| format!("the key of {name} in {} is damaged", directory.display()))?;
        // The parameters follow from the name, so the certificate itself need not be parsed.
        Ok(Self { certificate, issuer: Issuer::new(authority(name), key) })
    }

    fn issue(&self, parameters: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate().context("generate a key")?;
        let certificate = parameters.signed_by(&key, &self.issuer).context("sign a certificate")?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut parameters = subject(name, None);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // controller-manager's certificate signer requires digitalSignature in addition to the two that sign.
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    parameters
}

fn client(user: &str, group: Option<&str>) -> CertificateParams {
    let mut parameters = subject(user, group);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters
}

fn subject(user: &str, group: Option<&str>) -> CertificateParams {
    let mut name = DistinguishedName::new();
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name.push(DnType::CommonName, user);
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = name;
    parameters
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
