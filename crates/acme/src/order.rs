//! One order: from the account to the certificate.

use crate::{
    Challenge, Settings, StateDir, Validity,
    challenge::Answer,
    schedule::Window,
    state::{self, PendingFile},
};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use std::{
    error::Error as _,
    fmt, io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long the authority may take to check a challenge, and then again to issue the certificate.
const PATIENCE: Duration = Duration::from_secs(90);
/// The first interval between two queries of the state.
const POLL_FIRST: Duration = Duration::from_millis(500);

/// The types of problems of RFC 8555 §6.7 begin with this.
const PROBLEMS: &str = "urn:ietf:params:acme:error:";

/// The reason why there is no certificate, as a sentence with the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    reason: String,
    /// The authority requests a pause.
    pub(crate) is_rate_limit: bool,
}

impl Failure {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_rate_limit: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": make room on this disk",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ": make the state directory writable for the server's user"
            }
            _ => "",
        };
        Self::new(format!("the state directory: {error}{help}"))
    }
}

/// Adds the step that failed to an error of the authority.
fn during<'a>(settings: &'a Settings, what: &'a str) -> impl FnOnce(Error) -> Failure + 'a {
    move |error| {
        let directory = &settings.directory;
        if let Error::Api(problem) = &error {
            let kind = problem.r#type.as_deref();
            let is = |name| kind.and_then(|kind| kind.strip_prefix(PROBLEMS)) == Some(name);
            let mut reason = format!("{what}: the authority answers: {problem}");
            if is("accountDoesNotExist") {
                // A directory for trials forgets its accounts.
                let file = StateDir::new(&settings.state_dir, directory).account();
                reason += &format!(": remove {} to register a new account", file.display());
            }
            return Failure { reason, is_rate_limit: is("rateLimited") };
        }
        let mut reason = format!("{what}: {error}");
        // The causes, such as a refused connection, are in the chain of sources.
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !reason.contains(&text) {
                reason.push_str(": ");
                reason.push_str(&text);
            }
            source = cause.source();
        }
        let help = match &error {
            Error::Timeout(_) => "the authority was too slow",
            _ if settings.root.is_some() => {
                "can this machine reach it, and is --acme-ca the root of its certificate?"
            }
            _ => "can this machine reach it?",
        };
        Failure::new(format!("{reason} (directory {directory}; {help})"))
    }
}

/// Returns the account: the stored one, or a new one, which is then stored.
pub(crate) async fn account(settings: &Settings, state: &StateDir) -> Result<Account, Failure> {
    let builder = || {
        let builder = match &settings.root {
            Some(root) => Account::builder_with_root(root),
            None => Account::builder(),
        };
        builder.map_err(|error| match &settings.root {
            Some(root) => Failure::new(format!("--acme-ca {}: {error}", root.display())),
            None => Failure::new(format!(
                "the system's roots of trust: {error}: name a root with --acme-ca"
            )),
        })
    };
    let path = state.account();
    if let Some(stored) = state::read(&path)? {
        let credentials: AccountCredentials = serde_json::from_slice(&stored).map_err(|error| {
            Failure::new(format!(
                "{}: the stored account cannot be read: {error}: remove the file to register a new account",
                path.display()
            ))
        })?;
        let account = builder()?.from_credentials(credentials).await;
        return account.map_err(during(settings, "the account"));
    }
    // The file is reserved before the account exists: an account whose key is lost is useless.
    let file = PendingFile::reserve(&path)?;
    let contact = settings.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder()?
        .create(&new, settings.directory.clone(), None)
        .await
        .map_err(during(settings, "a new account"))?;
    let stored =
        serde_json::to_vec(&credentials).map_err(|error| Failure::new(error.to_string()))?;
    file.finish(&stored)?;
    tracing::info!("acme: a new account at {}", settings.directory);
    Ok(account)
}

/// Asks for the period in which the authority suggests to renew a certificate (RFC 9773), and for the time
/// until the next query. Returns `None` if the authority has no such information.
pub(crate) async fn renewal_window(
    settings: &Settings,
    account: &Account,
    certificate: &CertificateIdentifier<'_>,
) -> Result<Option<(Window, Duration)>, Failure> {
    let (info, next_query) = match account.renewal_info(certificate).await {
        Ok(answer) => answer,
        Err(Error::Unsupported(_)) => return Ok(None),
        Err(error) => return Err(during(settings, "the renewal window")(error)),
    };
    let window = info.suggested_window;
    let time = |unix_s: i64| -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).unwrap_or_default())
    };
    let window =
        Window::new(time(window.start.unix_timestamp()), time(window.end.unix_timestamp()));
    let invalid = || Failure::new("the renewal window: it does not end after its start");
    Ok(Some((window.ok_or_else(invalid)?, next_query)))
}

/// Orders a certificate for `name` with this challenge, and stores it. `replaced` is the certificate that it
/// replaces, for an authority that wants to know it.
pub(crate) async fn order(
    settings: &Settings,
    state: &StateDir,
    account: &Account,
    name: &str,
    challenge: Challenge,
    replaced: Option<CertificateIdentifier<'static>>,
) -> Result<Validity, Failure> {
    // The file is reserved first, since an authority limits the number of certificates of a name.
    let file = PendingFile::reserve(&state.certificate(name))?;
    let identifiers = [Identifier::Dns(name.to_owned())];
    let mut new = NewOrder::new(&identifiers);
    if let Some(replaced) = replaced {
        new = new.replaces(replaced);
    }
    let mut order = account.new_order(&new).await.map_err(during(settings, "a new order"))?;
    let answers = prepare(settings, state, &mut order, name, challenge).await?;
    let retries = RetryPolicy::new().initial_delay(POLL_FIRST).timeout(PATIENCE);
    let status = order.poll_ready(&retries).await;
    drop(answers);
    match status {
        Ok(OrderStatus::Ready | OrderStatus::Valid) => {}
        Err(error) if order.state().status != OrderStatus::Invalid => {
            return Err(during(settings, "the challenge")(error));
        }
        _ => return Err(refused(settings, &mut order, name, challenge).await),
    }
    let (key, request) = signing_request(name)
        .map_err(|error| Failure::new(format!("the signing request: {error}")))?;
    order.finalize_csr(&request).await.map_err(during(settings, "the signing request"))?;
    let chain =
        order.poll_certificate(&retries).await.map_err(during(settings, "the certificate"))?;
    let pem = chain + "\n" + &key;
    let validity = Validity::of_pem(pem.as_bytes())
        .ok_or_else(|| Failure::new("the authority has sent something that is no certificate"))?;
    file.finish(pem.as_bytes())?;
    Ok(validity)
}

/// Publishes the answers to the order's challenges and makes the authority check them.
async fn prepare(
    settings: &Settings,
    state: &StateDir,
    order: &mut Order,
    name: &str,
    challenge: Challenge,
) -> Result<Vec<Answer>, Failure> {
    let kind = match challenge {
        Challenge::Http01 => ChallengeType::Http01,
        Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    };
    let mut answers = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(during(settings, "an authorization"))?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => return Err(Failure::new(format!("the authorization is {status:?} already"))),
        }
        let mut handle = authorization.challenge(kind.clone()).ok_or_else(|| {
            Failure::new(format!(
                "the authority offers no challenge {challenge} for {name}: select another with --acme-challenge"
            ))
        })?;
        let authorization = handle.key_authorization();
        answers.push(Answer::publish(
            &state.challenges(),
            challenge,
            name,
            &handle.token,
            &authorization,
        )?);
        handle.set_ready().await.map_err(during(settings, "the challenge"))?;
    }
    Ok(answers)
}

/// The reason why the authority refused a challenge, in its own words.
async fn refused(
    settings: &Settings,
    order: &mut Order,
    name: &str,
    challenge: Challenge,
) -> Failure {
    let mut detail = None;
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        match authorization.refresh().await {
            Ok(state) => {
                let problem = state.challenges.iter().find_map(|one| one.error.as_ref());
                detail = problem.map(ToString::to_string).or(detail);
            }
            Err(error) => return during(settings, "the refused challenge")(error),
        }
    }
    let (port, how) = match challenge {
        Challenge::Http01 => (80, "--redirect-http :80"),
        Challenge::TlsAlpn01 => (443, "--listen :443"),
    };
    let detail = detail.unwrap_or_else(|| "it gives no reason".into());
    Failure::new(format!(
        "the authority could not validate {name} by {challenge}: {detail}: {name} must resolve to this machine, and \
         port {port} must be reachable from the Internet and lead to this server ({how})"
    ))
}

/// Makes a new key, PEM, and a signing request for it.
fn signing_request(name: &str) -> Result<(String, Vec<u8>), rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timing;
    use instant_acme::Problem;

    /// Regression: every attempt failed, and nothing said what to do.
    #[test]
    fn an_account_that_the_authority_does_not_know_has_a_remedy() {
        let settings = Settings {
            names: vec!["a.example".into()],
            directory: "https://ca.example/dir".into(),
            email: None,
            root: None,
            state_dir: "/state".into(),
            challenges: vec![Challenge::Http01],
            timing: Timing::default(),
        };
        let failure = |kind: &str| {
            let kind = Some(format!("urn:ietf:params:acme:error:{kind}"));
            let problem =
                Problem { r#type: kind, detail: None, status: Some(400), subproblems: Vec::new() };
            during(&settings, "a new order")(Error::Api(problem))
        };
        let unknown = failure("accountDoesNotExist");
        let text = unknown.to_string();
        assert!(text.contains("remove /state/acme/ca.example-"), "{text}");
        assert!(text.ends_with("/account.json to register a new account"), "{text}");
        assert!(!unknown.is_rate_limit);
        let limited = failure("rateLimited");
        assert!(limited.is_rate_limit && !limited.to_string().contains("remove"), "{limited}");
    }
}
