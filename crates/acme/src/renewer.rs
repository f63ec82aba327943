//! The thread that orders and renews certificates.

use crate::{
    Challenge, Settings, StateDir, Status, Validity, challenge,
    order::{self, Failure},
    schedule::Plan,
    state,
    validity::identifier_of_pem,
};
use instant_acme::{Account, CertificateIdentifier};
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};
use tokio::{
    runtime,
    sync::oneshot::{self, Receiver, Sender},
    time::{sleep, timeout},
};

/// How long one order may take, from the account to the stored certificate.
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the query for a renewal window may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest sleep, because the clock may be set during it.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The thread that orders and renews certificates. Dropping this value stops the thread, also in the
/// middle of an order.
#[derive(Debug)]
pub struct Renewer {
    status: Arc<Status>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    /// Starts the thread, which calls `on_certificate` after a certificate was stored.
    ///
    /// # Errors
    /// The state directory cannot be written; no thread can be created.
    pub fn start(
        settings: Settings,
        on_certificate: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let state = StateDir::new(&settings.state_dir, &settings.directory);
        state.create(None)?;
        let status = Arc::new(Status::new(&settings.names));
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let work = Work { settings, state, status: status.clone() };
        let thread = thread::Builder::new().name("acme".into()).spawn(move || {
            runtime.block_on(work.run_until(stopped, on_certificate));
            // A pending name resolution must not delay the server's end.
            runtime.shutdown_background();
        })?;
        Ok(Self { status, stop: Some(stop), thread: Some(thread) })
    }

    /// The state of the orders so far.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    settings: Settings,
    state: StateDir,
    status: Arc<Status>,
}

impl Work {
    async fn run_until(&self, stopped: Receiver<()>, on_certificate: impl Fn()) {
        tokio::select! {
            () = self.run(on_certificate) => {}
            // The sender was dropped.
            _ = stopped => {}
        }
    }

    async fn run(&self, on_certificate: impl Fn()) {
        let _lock = self.lock().await;
        challenge::remove_old(&self.state.challenges());
        let mut plans: Vec<Plan> = (0..self.settings.names.len())
            .map(|index| Plan::for_stored(self.look_at(index), rand::random()))
            .collect();
        let mut account = None;
        loop {
            for (index, plan) in plans.iter_mut().enumerate() {
                let is_reached = |time| time <= SystemTime::now();
                if !is_reached(plan.due) && plan.query_at.is_some_and(is_reached) {
                    *plan = self.query_window(index, *plan, &mut account).await;
                }
                if is_reached(plan.due) {
                    *plan = self.attempt(index, *plan, &mut account, &on_certificate).await;
                }
            }
            let due = plans.iter().map(Plan::next).min();
            let left = due.and_then(|due| due.duration_since(SystemTime::now()).ok());
            sleep(left.unwrap_or_default().min(SLEEP_MAX)).await;
        }
    }

    /// Waits until this process has the lock, so that it is the one that orders.
    async fn lock(&self) -> state::Lock {
        let mut has_warned = false;
        loop {
            match self.state.lock() {
                Ok(Some(lock)) => return lock,
                Ok(None) if !has_warned => tracing::info!(
                    "acme: another process orders certificates in this state directory; this one uses them"
                ),
                Err(error) if !has_warned => tracing::error!(
                    "acme: no certificate is ordered: {}: the next attempt is soon",
                    Failure::from(error)
                ),
                _ => {}
            }
            has_warned = true;
            // The certificates of the process with the lock are used here as well.
            for index in 0..self.settings.names.len() {
                let _ = self.look_at(index);
            }
            sleep(self.settings.timing.lock_retry).await;
        }
    }

    /// Reads the stored certificate of a name.
    fn look_at(&self, index: usize) -> Option<Validity> {
        let validity = self.stored(index).and_then(|pem| Validity::of_pem(&pem));
        self.status.set_validity(index, validity);
        validity
    }

    fn stored(&self, index: usize) -> Option<Vec<u8>> {
        let path = self.state.certificate(&self.settings.names[index]);
        state::read(&path).unwrap_or_else(|error| {
            tracing::warn!("acme: {error}");
            None
        })
    }

    /// The name by which the authority knows the stored certificate.
    fn identifier(&self, index: usize) -> Option<CertificateIdentifier<'static>> {
        identifier_of_pem(&self.stored(index)?)
    }

    /// Asks the authority when it wants the certificate to be renewed.
    async fn query_window(&self, index: usize, plan: Plan, account: &mut Option<Account>) -> Plan {
        let (name, timing) = (&self.settings.names[index], &self.settings.timing);
        let now = SystemTime::now();
        let (Some(validity), Some(certificate)) = (self.look_at(index), self.identifier(index))
        else {
            return plan.without_window(None, now);
        };
        let query = timeout(QUERY_TIMEOUT, async {
            let present = self.account(account).await?;
            order::renewal_window(&self.settings, present, &certificate).await
        });
        let outcome = query.await.unwrap_or_else(|_| {
            Err(Failure::new(format!("no answer within {} s", QUERY_TIMEOUT.as_secs())))
        });
        match outcome {
            Ok(Some((window, wait))) => {
                let next = plan.in_window(window, validity, now, wait, timing, rand::random());
                if next.due != plan.due {
                    tracing::info!(
                        "acme: {name} is to be renewed in {} s, when the authority suggests it",
                        next.due.duration_since(now).unwrap_or_default().as_secs()
                    );
                }
                next
            }
            Ok(None) => plan.without_window(None, now),
            Err(failure) => {
                tracing::info!(
                    "acme: {name}: the authority suggests no time for the renewal: {failure}; the next query is in {} s",
                    timing.window_retry.as_secs()
                );
                // Its URLs may have changed.
                *account = None;
                plan.without_window(Some(timing.window_retry), now)
            }
        }
    }

    /// The account, which is read or created at its first use.
    async fn account<'a>(&self, account: &'a mut Option<Account>) -> Result<&'a Account, Failure> {
        Ok(match account {
            Some(account) => account,
            None => account.insert(order::account(&self.settings, &self.state).await?),
        })
    }

    async fn attempt(
        &self,
        index: usize,
        plan: Plan,
        account: &mut Option<Account>,
        on_certificate: &impl Fn(),
    ) -> Plan {
        let (name, timing) = (&self.settings.names[index], &self.settings.timing);
        let challenges = &self.settings.challenges;
        let challenge = challenges[plan.failures as usize % challenges.len()];
        tracing::info!("acme: ordering a certificate for {name} by {challenge}");
        let replaced = if plan.names_predecessor() { self.identifier(index) } else { None };
        let order = timeout(ORDER_TIMEOUT, self.order(name, challenge, replaced, account));
        let outcome = order.await.unwrap_or_else(|_| {
            Err(Failure::new(format!("no certificate within {} s", ORDER_TIMEOUT.as_secs())))
        });
        let now = SystemTime::now();
        match outcome {
            Ok(validity) => {
                self.status.add_success();
                self.status.set_validity(index, Some(validity));
                let next = Plan::after_success(validity, now, timing, rand::random());
                let left =
                    |time: SystemTime| time.duration_since(now).unwrap_or_default().as_secs();
                tracing::info!(
                    "acme: {name} has a new certificate, valid for {} s, to be renewed in {} s",
                    left(validity.until),
                    left(next.due)
                );
                on_certificate();
                next
            }
            Err(failure) => {
                self.status.add_failure();
                let mut next = plan.after_failure(now, timing, rand::random());
                if failure.is_rate_limit {
                    next.due = now + timing.retry_max;
                }
                let wait = next.due.duration_since(now).unwrap_or_default();
                let current = match self.look_at(index) {
                    Some(validity) if validity.until > now => {
                        "the present certificate stays in use"
                    }
                    Some(_) => "the present certificate has expired",
                    None => "the server answers with a self-signed certificate until then",
                };
                tracing::error!(
                    "acme: no certificate for {name}: {failure}; {current}; the next attempt is in {} s",
                    wait.as_secs()
                );
                next
            }
        }
    }

    async fn order(
        &self,
        name: &str,
        challenge: Challenge,
        replaced: Option<CertificateIdentifier<'static>>,
        account: &mut Option<Account>,
    ) -> Result<Validity, Failure> {
        let present = self.account(account).await?;
        let outcome =
            order::order(&self.settings, &self.state, present, name, challenge, replaced).await;
        // After a failure the directory is read again: its URLs may have changed.
        if outcome.is_err() {
            *account = None;
        }
        outcome
    }
}
